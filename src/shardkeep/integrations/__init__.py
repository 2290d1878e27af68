"""shardkeep inside the frameworks of others, each in a module of its own."""
