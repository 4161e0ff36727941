"""Meet peers that mean harm, and check what each limit makes of them."""
