"""Hold programs that show what the library is for; ``README.md`` lists them."""
