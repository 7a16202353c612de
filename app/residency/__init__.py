"""Who holds which loaded model, and for how long."""
