"""A run, opened for reading: its files, its rows, and the tables and views over them."""
