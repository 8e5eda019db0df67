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
        name="long_api_key",
        file="src/naiad/frontend/access.py",
        text="        if len(token) > _MAX_KEY_BYTES:\n",
        replacement="        if len(token) > 100 * _MAX_KEY_BYTES:\n",
        tests=("unit/frontend/test_api_key_rule.py",),
        harm="keys of any length are hashed",
    ),
    Mutant(
        name="sagemaker_status",
        file="src/naiad/frontend/clouds.py",
        text="        if status >= 400 and is_out_of_memory(",
        replacement="        if is_out_of_memory(",
        tests=("unit/frontend/test_sagemaker_status.py",),
        harm="SageMaker unloads models because a model has answered with words about memory",
    ),
    Mutant(
        name="unknown_path_access",
        file="src/naiad/frontend/router.py",
        text="        if self._rule is None or not _reject(self._rule, UNKNOWN, context):\n",
        replacement="        if True:\n",
        tests=("unit/frontend/test_access.py", "unit/frontend/test_category.py"),
        harm="a restricted server shows all clients which paths exist",
    ),
    Mutant(
        name="foreign_page",
        file="src/naiad/frontend/web_pages.py",
        text="            return site.lower() in _OWN_SITES\n",
        replacement='            return site.lower() != b"cross-site"\n',
        tests=("unit/frontend/test_web_page_rule.py",),
        harm="a page on another port of this machine unloads models",
    ),
    Mutant(
        name="dropped_body",
        file="src/naiad/wire/http2/output.py",
        text="        if left < 0:\n            raise StreamError(stream_id, Http2Code.FLOW_CONTROL_ERROR)\n",
        replacement="",
        tests=("unit/frontend/test_early_refusal.py",),
        harm="a refused client sends a body of any size",
    ),
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
    Mutant(
        name="override_keeps_owner",
        file="src/naiad/config/override.py",
        text="            if owners and _is_set(owners[0], field) and _has_room(own, field):\n",
        replacement="            if False and owners:\n",
        tests=("unit/config/test_override.py",),
        harm="a client removes a protection of the owner by leaving its field out",
    ),
    Mutant(
        name="override_parameter",
        file="src/naiad/config/override.py",
        text="            elif not _is_listed_key(path, key) and entries[key] not in same_key:\n",
        replacement="            elif not _is_listed_key(path, key) and not same_key:\n",
        tests=("unit/config/test_override.py",),
        harm="a client gives a parameter of the owner another value, such as a digest or an interpreter",
    ),
    Mutant(
        name="library_confinement",
        file="src/naiad/config/validate/files.py",
        text="        elif is_outside(name) and directory:\n",
        replacement="        elif name.startswith('/') and directory:\n",
        tests=("unit/config/test_config_files.py",),
        harm="a configuration loads a library from outside the model's directory with '..'",
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
    Mutant(
        name="budget_of_versions",
        file="src/naiad/engine/loading/budget.py",
        text="        total = count * version_count\n",
        replacement="        total = count\n",
        tests=("unit/engine/test_load_budget.py",),
        harm="a model with many versions starts any number of processes",
    ),
    # repository
    Mutant(
        name="late_result",
        file="src/naiad/repository/catalog.py",
        text="            if plan.stop.is_requested:\n                stop_version(loaded, 0.0)\n",
        replacement="            if plan.stop.is_requested:\n",
        tests=("unit/repository/test_catalog.py",),
        harm="a load that had to end leaves its processes and memory behind",
    ),
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
    Mutant(
        name="archive_checksum",
        file="src/naiad/backend/python/worker/environment.py",
        text="            _read_to_the_end(opened)\n",
        replacement="",
        tests=("unit/backend/test_environment_archive.py",),
        harm="an archive of an environment with a changed bit is used",
    ),
    # worker
    Mutant(
        name="argument_bounds",
        file="src/naiad/worker/api/arguments.py",
        text="    if not bounds[0] <= value <= bounds[1]:\n",
        replacement="    if value > bounds[1]:\n",
        tests=("unit/worker/test_pb_arguments.py",),
        harm="negative timeouts and flags of a model's calls are sent to the server",
    ),
    Mutant(
        name="cancelled_iterator_listens",
        file="src/naiad/worker/api/iteration.py",
        text="            self._calls.cancel(self._number, is_listening=True)\n",
        replacement="            self._calls.cancel(self._number)\n",
        tests=("unit/backend/test_python_calls.py",),
        harm="the responses of a called model that ignores its cancellation are lost",
    ),
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
    Mutant(
        name="tag_is_a_label",
        file="src/naiad/config/validate/model.py",
        text="        if not _TAG.fullmatch(key):\n",
        replacement="        if not _TAG.match(key):\n",
        tests=("property/test_exposition_names.py", "unit/config/test_validation.py"),
        harm="a key of metric_tags makes /metrics invalid for every model",
    ),
    Mutant(
        name="shared_series",
        file="src/naiad/backend/custom_metrics.py",
        text="                self._check_series(name, series)\n",
        replacement="",
        tests=("property/test_exposition_names.py", "unit/backend/test_custom_metric_store.py"),
        harm="two custom metrics have a series of one name, and Prometheus drops one",
    ),
    Mutant(
        name="cancelled_answer",
        file="src/naiad/telemetry/statistics/model.py",
        text="(self._answered_is_success and not is_cancelled(response.error))",
        replacement="self._answered_is_success",
        tests=("unit/telemetry/test_statistics.py",),
        harm="requests that a Python model answers with CANCELLED count as successes",
    ),
    Mutant(
        name="audit_flood",
        file="src/naiad/telemetry/logs/access.py",
        text='        if self._limiter.admit(("refused", entry.protocol, entry.status)):\n',
        replacement='        if self._limiter.admit(("refused", entry.path)):\n',
        tests=("unit/telemetry/test_access_log.py",),
        harm="a flood of refused requests with different paths fills the disk",
    ),
    Mutant(
        name="table_cells",
        file="src/naiad/telemetry/logs/output.py",
        text="    if not all(map(str.isprintable, lines)):\n",
        replacement="    if not lines:\n",
        tests=("unit/telemetry/test_log.py",),
        harm="the name of a model controls the terminal that shows the log",
    ),
    # options and accounts
    Mutant(
        name="limit_given_twice",
        file="src/naiad/options/network/access.py",
        text="        if limit in found:\n",
        replacement="        if False:\n",
        tests=("unit/config/test_api_keys.py",),
        harm="of two limits of a key one has no effect, silently",
    ),
    Mutant(
        name="share_of_processes",
        file="src/naiad/frontend/accounting/key_usage.py",
        text="TokenBucket(limits.requests_per_s / share)",
        replacement="TokenBucket(limits.requests_per_s)",
        tests=("unit/frontend/test_key_usage.py",),
        harm="a key gets N times its limit from N processes",
    ),
    Mutant(
        name="idle_gaps",
        file="src/naiad/frontend/slice_runner.py",
        text="        if others > self._most_others:\n",
        replacement="        if others > self._most_others + 1000:\n",
        tests=("unit/frontend/test_slice_runner.py",),
        harm="large documents delay every small request by milliseconds",
    ),
    Mutant(
        name="recording_losses",
        file="src/naiad/telemetry/traffic.py",
        text="        self._lost_count += count\n",
        replacement="",
        tests=("unit/telemetry/test_traffic_recorder.py",),
        harm="lines that a full disk did not take are missing in the recording and in its counter",
    ),
    # control, cluster, files
    Mutant(
        name="concerned_models",
        file="src/naiad/repository/control/reconcile.py",
        text="frozenset([*names, *ensembles_above(names, state)])",
        replacement="frozenset([*names, *suspended])",
        tests=("unit/repository/test_reconcile.py",),
        harm="an ensemble that is about to come back is ready without the member that is unloaded meanwhile",
    ),
    Mutant(
        name="one_failing_process",
        file="src/naiad/cluster/supervisor/restarts.py",
        text="        if len(self.failing(now_ns)) == len(self._slots):\n",
        replacement="        if place.keeps_dying:\n",
        tests=("unit/server/test_supervision.py",),
        harm="one process that keeps dying ends a server whose other processes are well",
    ),
    Mutant(
        name="held_directory",
        file="src/naiad/files/temporary.py",
        text="                if is_free:\n                    shutil",
        replacement="                if True:\n                    shutil",
        tests=("unit/files/test_temporary.py",),
        harm="the start of a server deletes the uploaded models of another one",
    ),
    # bind
    Mutant(
        name="open_requests_of_a_function",
        file="src/naiad/bind/execution.py",
        text="            self._changed.wait_for(lambda: not self._open_count or self._open_count < MAX_OPEN_REQUESTS)\n",  # noqa: E501
        replacement="",
        tests=("unit/bind/test_bind_executor.py",),
        harm="a slow coroutine function takes requests without bound, past all queue policies",
    ),
    Mutant(
        name="loop_of_a_function",
        file="src/naiad/bind/loop_thread.py",
        text="        while not self._is_closing:\n",
        replacement="        for _ in range(1):\n",
        tests=("unit/bind/test_bind_executor.py",),
        harm="a coroutine that raises KeyboardInterrupt ends the loop: no later request gets an answer",
    ),
)
