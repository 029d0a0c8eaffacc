"""From records to tables and charts. Reads runs only: neither torch nor metrics are imported here."""
