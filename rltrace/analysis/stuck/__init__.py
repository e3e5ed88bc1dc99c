"""Who or what keeps a job from going on."""
