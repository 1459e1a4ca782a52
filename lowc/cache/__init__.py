"""What has been compiled, kept from one process to the next: a folder with one file for each compiled graph.

``key``      what a compilation depends on, as text; its digest is the entry's name
``entry``    the format of a file: the whole key, sections of bytes, and a checksum over all of it
``codec``    an artifact and its host program as sections, and back; data only, no pickle
``folder``   reading, writing, evicting; who may write there; what is done about damage
``place``    which folder, as the options and the environment say
``archive``  a whole folder as one file

Whatever is wrong with the cache costs time and a warning, never a compilation.
"""
