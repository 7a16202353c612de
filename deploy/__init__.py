"""What it takes to run ggufd somewhere."""
