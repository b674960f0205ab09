"""Source-side trees: parsing, file formats, and integers per word for the attention."""
