"""Ranks were lost: those that are left learn of it, agree, and make a world of their own. For Open MPI with ULFM alone.

    rank 1 is killed    whoever exchanges something with it gets an error
    0, 2                revoke: the others get one too, wherever they wait
    0, 2                agree: has each of us ended well?      yes: the run is over     no: shrink
    0, 2                shrink -> ranks 0, 1 of a world without the lost one

ULFM: Bland et al., "Post-failure recovery of MPI communication capability", IJHPCA 27 (2013); chapter "Process Fault Tolerance" of MPI 5.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from hpcpar.comm.pending import Pending, Waiter
from hpcpar.comm.rounds import Rounds
from hpcpar.comm.world import World

LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
FAULT_TOLERANCE = 12  # MPI_FT of Open MPI's mpi.h: an attribute of MPI_COMM_WORLD, 1 where the launch survives a lost rank
PATIENCE_S = 60.0  # for the calls that make a world, which take milliseconds


def unsupported() -> str:
    """Why a lost rank cannot be survived in this launch, and the remedy; "" where it can."""
    name, version = MPI.get_vendor()
    if name != "Open MPI" or version < (5, 0, 0):
        return f"{name} {'.'.join(map(str, version))} has no ULFM that was tried; use Open MPI >= 5.0 and mpirun --with-ft ulfm"
    place = MPI.COMM_WORLD.Get_attr(FAULT_TOLERANCE)
    if not place or not ctypes.c_int.from_address(place).value:
        return "this launch is not fault tolerant: Open MPI ends all ranks when one is lost; start it with mpirun --with-ft ulfm"
    return ""


def lost(world: World, error: BaseException) -> bool:
    """Whether an error says that a rank was lost, or follows from that."""
    if not isinstance(error, MPI.Exception):
        return False
    if error.Get_error_class() in LOSSES:
        return True
    return any(comm.Is_revoked() or comm.Get_failed().Get_size() for comm in world.made)  # several messages together say only "in status"


def all_ended(world: World, well: bool) -> bool:
    """Whether every rank that is left ended well; a rank that did not interrupts the others. Collective among those that are left."""
    if not well:
        for comm in world.made:
            comm.Revoke()
    flag = np.array([well], np.int32)
    request = world.comm.Iagree(flag)

    def agreed() -> bool:
        try:
            return request.Test()
        except MPI.Exception as e:
            if e.Get_error_class() != MPI.ERR_PROC_FAILED:
                raise
            return True  # the flag is agreed on; the error says that ranks are missing

    waiter = Waiter(world.waiter.naps, world.waiter.timeout_s, world.alarm.check_left)
    waiter.until(agreed, lambda: "the ranks that are left, to agree on how they go on")
    return bool(flag[0])


def shrink(world: World) -> tuple[World, list[int]]:
    """The world of the ranks that are left, in their order, and the numbers in the launch of those that were lost.

    Behind an `all_ended` that was not so. The old world cannot be used any more.
    """
    with _way_out():
        while True:
            comm: Any = world.comm.Shrink()
            try:
                new = World(comm, timeout_s=world.waiter.timeout_s)
            except MPI.Exception as e:  # one more was lost meanwhile: the ranks whose world is ready hear of it by this
                comm.Revoke()
                if e.Get_error_class() not in LOSSES:
                    raise
                world.made, world.comm = [comm], comm
                all_ended(world, False)
                continue
            new.waiter.naps = world.waiter.naps
            gone = MPI.Group.Difference(MPI.COMM_WORLD.Get_group(), comm.Get_group())
            ranks = MPI.Group.Translate_ranks(gone, range(gone.Get_size()), MPI.COMM_WORLD.Get_group())
            _give_up(world)
            return new, [int(r) for r in ranks]


def leave(world: World, code: int, said: str = "") -> NoReturn:
    """End this process, behind the last word of rank 0, without MPI_Finalize, which may wait for a lost rank for ever.

    Open MPI 5.0.11 does so now and then, in the fence of its launcher. All that are left come here together.
    """
    sys.stderr.write(said)
    sys.stdout.flush()
    sys.stderr.flush()
    if code:  # the launcher ends who is left as soon as one has gone with a code, and rank 0 is to speak first
        with contextlib.suppress(MPI.Exception):
            world.barrier()
    os._exit(code)


def _give_up(world: World) -> None:
    """Let go of all that was on its way when its communicators were revoked: MPI is through with the arrays when each has said so."""
    waiter = Waiter(True, world.waiter.timeout_s, lambda: None)
    for pending in world.outstanding:
        waiter.until(lambda pending=pending: _is_over(pending), pending.describe)  # type: ignore[misc]
    world.outstanding.clear()
    world.free()
    gc.collect()  # exceptions and their frames hold the weights of before


def _is_over(pending: Pending) -> bool:
    request = pending.request
    return all(_ended(r) for r in (request.under_way if isinstance(request, Rounds) else [request]))


def _ended(request: MPI.Request) -> bool:
    """Complete, or ended by the revocation; in both cases the request is then null, and tests true."""
    try:
        return request.Test()
    except MPI.Exception:
        return True


@contextlib.contextmanager
def _way_out() -> Iterator[None]:
    """Calls that block: who is still inside after `PATIENCE_S` says where, and ends; to the others it is a rank that was lost."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
