"""What a model of each architecture consists of: descriptors, one file each in the catalog."""
