"""Run the browser's end in a real browser."""
