"""Copies of recordings without what is private in them: names of hosts and users, paths, arguments, secrets."""
