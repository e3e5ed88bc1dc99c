"""The parts of the report, each as a section for any page."""
