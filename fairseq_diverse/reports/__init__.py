"""Reports: from summaries of runs to lines, columns, notes and pictures, and one renderer for each format."""
