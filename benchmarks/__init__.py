"""Speed, memory and accuracy, measured side by side with the peers."""
