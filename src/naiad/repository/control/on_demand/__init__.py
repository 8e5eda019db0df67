"""Models on demand: loaded by their first request, unloaded when their memory is needed.

A model on demand is in one of four phases:

- COLD: its configuration is known, nothing of it is loaded. A request for it is held, and begins a load.
- LOADING: a thread makes room in the budget and loads it. Requests are held.
- LOADED: it is in the engine's table as any other model, and its requests pass nothing that is new.
- EVICTING: it has left the table, its running requests end, then it is unloaded. Requests are held until it is COLD,
  and then load it again.

`Residency` owns the phases, the sizes, the budget and the order of use. It is pure: time and use are arguments.
`OnDemandModels` owns a `Residency`, which it changes under one lock. Threads, one for each load and each eviction, do
what blocks, through the `ModelController`, whose locks keep commands, updates and these threads apart.
`MemoryMeter` measures what a load has added to the memory of the process.

The engine owns the held requests (`engine/on_demand/held_requests.py`), on the event loop. It asks for a model on the
loop, which takes microseconds, and hears on the loop how the load has ended. Until it has submitted the held requests
the model is protected: it cannot be evicted. So each load serves at least the requests that have asked for it.

No thread waits for the loop, and the loop waits for no thread. A load for the call of a running model takes no turn
and exceeds the budget if it must: the room that it would wait for may be its caller's.
"""
