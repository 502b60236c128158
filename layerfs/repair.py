"""Repair: what can be made anew from the packs, made anew.

Everything a store needs besides its packs is derived from them: the database is a replay of the moves, an index a scan of
its pack. Owns these two and nothing else: bytes of a pack that are gone cannot be had back here, and no pack is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from layerfs.errors import LayerfsError, StoreDamaged
from layerfs.objects import packs
from layerfs.objects.packindex import IndexBuilder, frame_places, map_index
from layerfs.store import PACKS, Store


def repair_store(path: bytes, clock: Callable[[], int]) -> list[str]:
    """Rebuild the database and every index that does not verify; return what was done, in words."""
    done: list[str] = []
    with Store.open(path, clock=clock, attach=False) as store:
        moves = store.rebuild_database()
        done.append(f"database made anew from {moves} moves")
        directory = store.files.open_directory(os.path.join(path, PACKS))
        try:
            for row in store.db.packs():
                if _rebuild_index(store, directory, row.number):
                    done.append(f"index of pack {packs.pack_name(row.number)} made anew")
        finally:
            os.close(directory)
        done.extend(store.notes)
    return done


def _rebuild_index(store: Store, directory: int, number: int) -> bool:
    pack = store.files.open(directory, packs.pack_file(number))
    try:
        length = os.fstat(pack).st_size
        if _is_whole(store, directory, number, length):
            return False
        builder = IndexBuilder()
        end = packs.HEADER_BYTES
        for scanned in packs.scan_frames(pack, end, length):
            for prefix, place in frame_places(scanned):
                builder.add(prefix, place)
            end = scanned.end
        if end != length:
            raise StoreDamaged(
                f"pack {packs.pack_name(number)} is damaged at offset {end}, so its index cannot be made anew",
                "'layerfs fsck' without --repair names what is affected",
            )
        store.files.replace(directory, packs.index_file(number), builder.encode(length))
        return True
    finally:
        os.close(pack)


def _is_whole(store: Store, directory: int, number: int, length: int) -> bool:
    try:
        descriptor = store.files.open(directory, packs.index_file(number))
    except FileNotFoundError:
        return False
    try:
        index = map_index(descriptor, length)
    except LayerfsError:
        return False
    finally:
        os.close(descriptor)
    try:
        index.verify()
    except LayerfsError:
        return False
    finally:
        index.close()
    return True
