"""What parts that fit are good for: new domains, new extractors, many devices, faster transfer."""
