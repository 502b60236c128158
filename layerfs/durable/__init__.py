"""What makes a store last: durable files, the pointer database, and the locks of those who write."""
