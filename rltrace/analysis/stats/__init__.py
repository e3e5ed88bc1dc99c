"""All intervals and tests of the analysis; scipy, too slow to import here, is their reference."""
