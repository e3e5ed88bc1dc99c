"""mindspeed-rl: what its logs say; nothing of it is hooked."""
