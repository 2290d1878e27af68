"""The viewer: what a browser asks for, and who answers."""
