"""What is measured on a GPU. Each module runs alone, and with `--cpu` where there is none."""
