"""Functions of the job, replaced by ones that record their calls."""
