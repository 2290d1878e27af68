"""The same questions, asked of other libraries, side by side."""
