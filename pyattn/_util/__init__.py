"""Small things that every folder needs: arguments, types, warnings, slabs of memory. They import nothing above them."""
