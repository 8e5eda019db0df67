"""The mutants, in the order of the layers: wire, protocol, frontend, config, scheduler, engine, and so on."""

from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # wire
    Mutant(
        name="response_window",
        file="src/naiad/wire/http2/output.py",
        text="            self.window -= payload_bytes\n",
        replacement="",
        tests=("property/test_http2_properties.py", "unit/wire/test_http2_output.py"),
        harm="whole responses are not charged to the connection's window: the peer ends the connection",
    ),
    Mutant(
        name="receive_window",
        file="src/naiad/wire/http2/windows.py",
        text="        if self.left_bytes < 0:\n",
        replacement="        if self.left_bytes < -self._full_bytes:\n",
        tests=("property/test_http2_properties.py", "unit/wire/test_http2_connection.py", "conformance"),
        harm="a peer may send twice the window: memory per connection is not bounded as documented",
    ),
    Mutant(
        name="hpack_cache",
        file="src/naiad/wire/http2/hpack.py",
        text="            blocks = self.cached if self._used_dynamic else self.cached_static\n",
        replacement="            blocks = self.cached_static\n",
        tests=("property/test_http2_properties.py", "unit/wire/test_hpack_cache.py"),
        harm="header blocks keep their meaning after the dynamic table has changed: requests get wrong headers",
    ),
    Mutant(
        name="chunked_body_limit",
        file="src/naiad/wire/http1.py",
        text="if self._chunk_count >= limits.chunk_count or len(body) + length > limits.body_bytes:",
        replacement="if self._chunk_count >= limits.chunk_count:",
        tests=("property/test_http1_chunking.py", "unit/frontend/test_http1_body.py"),
        harm="the fast path for small chunks takes bodies of any size",
    ),
    # protocol and core
    Mutant(
        name="bytes_element_length",
        file="src/naiad/core/tensor.py",
        text="        if end - position < length:\n",
        replacement="        if end - position + 1 < length:\n",
        tests=("property/test_bytes_elements.py",),
        harm="a BYTES element that lacks its last byte is accepted",
    ),
    Mutant(
        name="bf16_item_bytes",
        file="src/naiad/core/datatype.py",
        text="    _datatype.item_bytes = 0 if _datatype is DataType.BYTES else _datatype.numpy.itemsize\n",
        replacement=(
            "    _datatype.item_bytes = "
            "0 if _datatype is DataType.BYTES else 4 if _datatype is DataType.BF16 else _datatype.numpy.itemsize\n"
        ),
        tests=("unit/protocol/test_json_base64.py", "property/test_infer_grpc_properties.py"),
        harm="BF16 tensors of the right size are refused",
    ),
    Mutant(
        name="shape_limit",
        file="src/naiad/core/request_limits.py",
        text="    if count > MAX_DIMS:\n",
        replacement="    if count > MAX_DIMS + 1:\n",
        tests=("unit/core/test_request_limits.py",),
        harm="a shape of 65 dimensions passes, which numpy cannot represent: status 500 instead of 400",
    ),
    # frontend
    Mutant(
        name="pipelined_bytes",
        file="src/naiad/frontend/http1/responses.py",
        text="                context.waiting_bytes = 0\n",
        replacement="",
        tests=("unit/frontend/test_http1_connection.py", "property/test_http1_pipelining.py"),
        harm="a pipelined streamed response counts as unsent after it was sent: its connection is dropped",
    ),
    Mutant(
        name="route_cache",
        file="src/naiad/frontend/router.py",
        text="        self._found.remember(path, found, len(path))\n",
        replacement="        dict.__setitem__(self._found, path, found)\n",
        tests=("unit/frontend/test_router.py",),
        harm="every new path stays in memory",
    ),
    # config
    Mutant(
        name="preferred_size_limit",
        file="src/naiad/config/validate/sequence.py",
        text="        elif size > largest:\n",
        replacement="        elif size > largest + 1:\n",
        tests=("unit/config/test_validation.py",),
        harm="a preferred batch size above the maximum is accepted: its batches never form",
    ),
    # scheduler
    Mutant(
        name="priority_order",
        file="src/naiad/scheduler/dynamic.py",
        text="        return [self._levels[key] for key in sorted(self._levels)]\n",
        replacement="        return list(self._levels.values())\n",
        tests=("unit/scheduler/test_dynamic_policies.py", "property/test_scheduler_invariants.py"),
        harm="priorities count in the order in which they first came",
    ),
    Mutant(
        name="timeout_override",
        file="src/naiad/scheduler/queue.py",
        text="            if 0 < own_ns < timeout_ns:\n",
        replacement="            if 0 < own_ns:\n",
        tests=("unit/scheduler/test_dynamic_policies.py", "property/test_scheduler_invariants.py"),
        harm="a request may wait longer than the configuration allows",
    ),
    Mutant(
        name="stale_deadline",
        file="src/naiad/scheduler/queue.py",
        text="            if entry is not None and entry[0] == deadline_ns:\n",
        replacement="            if entry is not None:\n",
        tests=("unit/scheduler/test_scheduler_parts.py",),
        harm="a request times out at the deadline of another that had its id before",
    ),
    Mutant(
        name="preferred_size_cut",
        file="src/naiad/scheduler/dynamic.py",
        text="            del candidate.requests[candidate.mark :]\n",
        replacement="",
        tests=("unit/scheduler/test_dynamic_rules.py", "property/test_scheduler_invariants.py"),
        harm="batches are not cut to a preferred size",
    ),
    Mutant(
        name="sequence_slot",
        file="src/naiad/scheduler/sequence/slots.py",
        text=(
            "            self.slots[instance][slot] = None\n"
            "            heapq.heappush(self._free, (slot, instance))\n"
            "            return None\n"
        ),
        replacement="            self.slots[instance][slot] = None\n            return None\n",
        tests=("unit/scheduler/test_sequence_rules.py", "property/test_sequence_invariants.py"),
        harm="the slot of an ended sequence is lost: the model stops taking sequences",
    ),
    Mutant(
        name="rate_limiter_fairness",
        file="src/naiad/scheduler/rate_limiter.py",
        text="                kept_back.update(claim.needs)\n",
        replacement="",
        tests=("unit/scheduler/test_rate_limiter.py", "property/test_rate_limiter_invariants.py"),
        harm="an instance that needs much starves behind instances that need little",
    ),
    # engine
    Mutant(
        name="second_wake_up",
        file="src/naiad/engine/serving/dispatcher.py",
        text="                other = self._pop_idle() if self._idle else None\n        if dropped:\n",
        replacement="        if dropped:\n",
        tests=("unit/engine/test_idle_runners.py", "property/test_wake_up_invariants.py"),
        harm="one instance executes what two could share, the other sleeps",
    ),
    Mutant(
        name="lost_wake_up",
        file="src/naiad/engine/serving/responses.py",
        text=(
            "        self._woken = False\n"
            "        answers = self._answers\n"
            "        while answers:\n"
            "            _answer(*answers.popleft())\n"
        ),
        replacement=(
            "        answers = self._answers\n"
            "        while answers:\n"
            "            _answer(*answers.popleft())\n"
            "        self._woken = False\n"
        ),
        tests=("unit/engine/test_response_queue.py",),
        harm="a response that is ready while the loop delivers others waits for the next one",
    ),
    Mutant(
        name="empty_batch",
        file="src/naiad/engine/admission.py",
        text="        if not 0 <= batch_size <= self._max_batch_size:\n",
        replacement="        if not 0 < batch_size <= self._max_batch_size:\n",
        tests=("unit/engine/test_admission.py",),
        harm="batches of 0 rows are refused, which Triton accepts",
    ),
    Mutant(
        name="data_size",
        file="src/naiad/engine/admission.py",
        text="            elif len(data) != size:\n",
        replacement="            elif len(data) < size:\n",
        tests=("unit/engine/test_admission.py",),
        harm="tensor data that is longer than its shape reaches the backend",
    ),
    Mutant(
        name="response_order",
        file="src/naiad/engine/serving/decoupled.py",
        text=(
            "            if not on_loop:\n"
            "                # Under the lock, so that responses of several threads keep their order.\n"
            "                self._deliver((request,), (response,))\n"
            "        if on_loop:\n"
            "            self._deliver((request,), (response,), on_loop=True)\n"
        ),
        replacement="        self._deliver((request,), (response,), on_loop=on_loop)\n",
        tests=("unit/engine/test_decoupled.py",),
        harm="responses that two threads of a decoupled model send arrive in the wrong order",
    ),
    Mutant(
        name="cancel_of_shared",
        file="src/naiad/engine/cache/model.py",
        text="        if len(pending.waiting) == 1 and pending.asked is not None:\n",
        replacement="        if pending.asked is not None and next(iter(pending.waiting)) is request:\n",
        tests=("unit/engine/test_response_cache.py", "property/test_cached_model_invariants.py"),
        harm="a client that cancels takes the answer from clients that wait for the same",
    ),
    Mutant(
        name="cache_key",
        file="src/naiad/engine/cache/model.py",
        text="request.data if memo[2] is None else [request.data[place] for place in memo[2]]:",
        replacement="request.data:",
        tests=("unit/engine/test_response_cache.py",),
        harm="inputs in another order get the response to other data",
    ),
    # repository
    Mutant(
        name="version_policy",
        file="src/naiad/config/autofill.py",
        text="    return ordered[-count:] if count else []\n",
        replacement="    return ordered[:count] if count else []\n",
        tests=("unit/config/test_version_policy.py", "unit/repository/test_control.py"),
        harm="the oldest versions of a model are served instead of the latest",
    ),
    Mutant(
        name="fingerprint",
        file="src/naiad/repository/stores/fingerprint.py",
        text='        moments = f"{status.st_mtime_ns}\\0{status.st_ctime_ns}\\0{status.st_ino}"\n',
        replacement='        moments = f"{status.st_mtime_ns}"\n',
        tests=("unit/repository/test_fingerprint.py",),
        harm="a file that was replaced by one of equal size and time is not loaded",
    ),
    Mutant(
        name="unload_during_reload",
        file="src/naiad/repository/lifecycle.py",
        text="v.loaded is not None and id(v.loaded) not in staying]",
        replacement="v.loaded is not None]",
        tests=("unit/repository/test_lifecycle.py", "unit/repository/test_control.py"),
        harm="versions that stay in place are stopped by a reload",
    ),
    # worker
    Mutant(
        name="block_number",
        file="src/naiad/worker/channel/buffer_pool.py",
        text=("        while self._last_number % NUMBERS in taken:\n            self._last_number += 1\n"),
        replacement="",
        tests=(
            "property/test_worker_blocks.py",
            "unit/worker/test_worker_block.py",
        ),
        harm="after 4,096 blocks two tensors share a flag: memory in use is overwritten",
    ),
    Mutant(
        name="restart_limit",
        file="src/naiad/backend/python/worker_life.py",
        text="        elif count >= max(1, settings.restart_limit):\n",
        replacement="        elif count > max(1, settings.restart_limit):\n",
        tests=("unit/backend/test_python_life.py",),
        harm="a worker that dies at every start is restarted once more than configured",
    ),
    Mutant(
        name="deaths_before_trial",
        file="src/naiad/backend/python/worker_life.py",
        text="            self._is_on_trial = False\n            self._deaths.clear()\n",
        replacement="            self._is_on_trial = False\n",
        tests=("unit/backend/test_python_life.py",),
        harm="a worker that recovered is taken out of service at its next exit",
    ),
    # telemetry
    Mutant(
        name="exited_process_counts",
        file="src/naiad/cluster/supervisor/scatter_gather.py",
        text="sum_statistics([self._left_statistics, self._statistics.pop(slot, ())])",
        replacement="list(self._statistics.pop(slot, ()))",
        tests=("unit/server/test_exited_workers.py",),
        harm="counters go down when a second process exits",
    ),
    # publish
    Mutant(
        name="cancelled_publication",
        file="src/naiad/publish/publication.py",
        text="        except asyncio.CancelledError:\n            await self._back()\n            raise\n",
        replacement="",
        tests=("unit/publish/test_publication.py",),
        harm="a publication that is cancelled while its version loads leaves that version served",
    ),
    Mutant(
        name="served_old_versions",
        file="src/naiad/publish/publication.py",
        text="            if version not in served:\n",
        replacement="            if True:\n",
        tests=("unit/publish/test_publication.py",),
        harm="files of versions that are served are removed: the next start fails",
    ),
    Mutant(
        name="publication_without_trial",
        file="src/naiad/publish/publication.py",
        text="        if not (self._before and self._served.loads_on_request):\n",
        replacement="        if self._before or not self._served.loads_on_request:\n",
        tests=("unit/publish/test_publication.py",),
        harm="clients get answers of a version that fails its sample",
    ),
    # rollouts
    Mutant(
        name="refusals_are_united",
        file="src/naiad/config/rollout/record.py",
        text="        joined[version] = max(verdict, joined.get(version, verdict))\n",
        replacement="        joined[version] = verdict\n",
        tests=("property/test_rollout_record_properties.py",),
        harm="a server that starts later tries a version again that another one has rolled back",
    ),
    Mutant(
        name="cautious_decision_counts",
        file="src/naiad/config/rollout/record.py",
        text="    return state.revision, -exposure,",
        replacement="    return state.revision, exposure,",
        tests=("unit/config/test_rollout_record.py",),
        harm="of two decisions at the same time the one counts that gives more requests to the new version",
    ),
    Mutant(
        name="rollback_refuses",
        file="src/naiad/config/rollout/state.py",
        text="        return _refusing(after, rollout.canary, note)\n",
        replacement="        return after\n",
        tests=("unit/config/test_rollout_record.py",),
        harm="a version that was rolled back gets all requests when the rollout ends or the server starts again",
    ),
    Mutant(
        name="stored_before_answered",
        file="src/naiad/engine/rollout/changes.py",
        text="            if error is not None or not self._records.has(key) or not is_news(state):\n",
        replacement="            if True:\n",
        tests=("unit/engine/test_rollout_changes.py",),
        harm="a server that is killed after the answer has forgotten the decision",
    ),
)
