"""What several method modules share."""
