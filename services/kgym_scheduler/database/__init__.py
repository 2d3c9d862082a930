"""The database: its tables, its connections, its clock."""
