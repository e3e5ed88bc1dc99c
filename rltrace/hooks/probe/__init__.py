"""The probe: stages delayed by known doses, at random steps."""
