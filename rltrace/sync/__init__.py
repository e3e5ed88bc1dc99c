"""Weight movement from the learner to rollout workers, in versions."""
