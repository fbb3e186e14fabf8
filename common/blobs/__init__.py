"""The blob store: immutable folders, complete or absent.

store.py    Blobs: puts, fetches, lists and deletes them in JetStream's object store
content.py  content that is fetched: its limits, digest and failures; a folder as bytes and back
chunks.py   reads a blob one part at a time, for clients without JetStream
"""

# pyright: reportUnusedImport=false
from common.blobs.content import fetch_timeout_s, unpack_blob
from common.blobs.store import BLOB_NAME, ROOM, Blobs, StoredBlob, StoreUsage, folder_ref
