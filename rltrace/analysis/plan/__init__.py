"""From a workload's shape to a design, before any GPU is rented: what each stage will take, what
fits, which placement is best, what will bind."""
