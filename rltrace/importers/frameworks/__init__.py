"""What the logs of each framework mean."""
