"""A run that lies elsewhere: shipped to a URL, and brought from there."""
