"""What operators do: stacks, limits as a file, older tables, local engines, the change log."""
