"""The configurations of the models on a server: read, replaced by variants, and put back."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.config.forms.json_form import config_from_json, config_to_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelState
from naiad.tools.analyze.live.undo_journal import Original, read_journal, write_journal
from naiad.tools.analyze.space import Variant
from naiad.tools.analyze.variants import fit_ensembles, member_names, members_first

_log = logging.getLogger(__name__)
NO_CONTROL = "explicit model load / unload is not allowed"
"""Triton: the error of a server without explicit control, which has changed nothing."""
_ATTEMPTS = 2


class Configurations:
    """The models of an analysis on one server. Methods raise InferError as loads do, ConnectionFailedError."""

    def __init__(self, client: Client, url: str, journal: Path | None) -> None:
        """`journal` is written before the first change, and removed when everything is as it was."""
        self._client = client
        self._url = url
        self._journal = journal
        self._originals: dict[str, Original] = {}
        self._loaded: dict[str, str | None] = {}
        """What each model was loaded with; "" for its original configuration, None when that is not known."""
        self.configs: dict[str, ModelConfig] = {}
        """Complete, as they were at the beginning."""
        self._above: dict[str, ModelConfig] = {}
        """Ensembles that serve and contain models of `configs`: their batch must stay within that of these."""

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, models: Collection[str]) -> None:
        """Read the models and the members of ensembles among them; those that are not ready are loaded.

        Ensembles above them are read, too, and follow the batches of their members.
        """
        if all(name in self.configs for name in models):
            return
        ready = {row.name for row in await self._client.repository_index() if row.state is ModelState.READY}
        waiting = list(dict.fromkeys(models))
        for name in waiting:
            if name in self.configs:
                continue
            if name in self._above:
                self.configs[name] = self._above.pop(name)
                waiting += member_names(self.configs[name])
                continue
            if not await self._client.is_model_ready(name):
                self._note(name, Original(""))
                await self._load_new(name)
            config = await self._client.model_config(name)
            self.configs[name] = config
            self._loaded[name] = ""
            # A member that is ready only because its ensemble was loaded is unloaded in the end.
            self._note(name, Original(config_to_json(config).decode() if name in ready else ""))
            waiting += member_names(config)
        await self._read_above(ready)

    async def _load_new(self, name: str) -> None:
        try:
            await self._client.load(name)
        except ConnectionFailedError:  # the server may have loaded it
            raise
        except InferError:
            self._forget(name)
            raise

    async def _read_above(self, ready: Collection[str]) -> None:
        # Those that are known already may have a smaller batch at the moment.
        unknown = sorted(name for name in ready if name not in self._all)
        others = {name: await self._client.model_config(name) for name in unknown}
        while found := [
            name
            for name, config in others.items()
            if name not in self._above and not self._all.keys().isdisjoint(member_names(config))
        ]:
            for name in found:
                self._above[name] = others[name]
                self._loaded[name] = ""
                self._note(name, Original(config_to_json(others[name]).decode()))

    @property
    def _all(self) -> dict[str, ModelConfig]:
        return {**self._above, **self.configs}

    def _note(self, name: str, original: Original) -> None:
        self._originals[name] = original
        if self._journal is not None:
            write_journal(self._journal, self._url, self._originals)

    def _forget(self, name: str) -> None:
        """Drop a model that did not load; a journal without a change of the server is removed."""
        del self._originals[name]
        if self._journal is None:
            return
        is_changed = any(loaded != "" for loaded in self._loaded.values())
        if is_changed or any(not each.config_json for each in self._originals.values()):
            write_journal(self._journal, self._url, self._originals)
        else:
            self._journal.unlink(missing_ok=True)

    # --- variants ---------------------------------------------------------------------------------------------------

    async def apply(self, variants: Sequence[Variant]) -> None:
        """Load the variants; models without one get their original configuration, ensembles the limit of members.

        What is loaded already is left alone. A model whose load failed is loaded again the next time.
        """
        wanted = dict.fromkeys(self._all, "")
        settings: dict[str, Mapping[str, Any]] = {}
        for each in fit_ensembles(self._all, variants, self._above):
            name = each.source_model or each.model
            wanted[name], settings[name] = each.config_json, each.settings
        waiting = self._order([name for name, text in wanted.items() if self._loaded.get(name) != text], wanted)
        for _ in range(_ATTEMPTS):
            for name in waiting:
                await self._load(name, wanted[name])
            # Triton: the load of an ensemble may take its members back to the files of the repository.
            waiting = [name for name in waiting if wanted[name] and not await self._serves(name, settings[name])]
            if not waiting:
                return
        raise InferError(
            ErrorCode.INTERNAL,
            f"the server has loaded {', '.join(waiting)} without the settings of the configuration override",
        )

    def _order(self, names: Sequence[str], wanted: Mapping[str, str]) -> list[str]:
        """Return the order of loads: at no time may the batch of an ensemble be larger than that of a member.

        Ensembles whose batch shrinks come before their members, all others after them.
        """
        known = [name for name in members_first(self._all) if name in names]
        shrinking = [name for name in reversed(known) if self._shrinks(name, wanted[name])]
        return shrinking + [name for name in known if name not in shrinking]

    def _shrinks(self, name: str, text: str) -> bool:
        if not self._all[name].HasField("ensemble_scheduling"):
            return False
        return self._max_batch_size(name, text) < self._max_batch_size(name, self._loaded[name] or "")

    def _max_batch_size(self, name: str, text: str) -> int:
        config = config_from_json(text) if text else self._all[name]
        return config.max_batch_size

    async def _load(self, name: str, text: str) -> None:
        before = self._loaded[name]
        self._loaded[name] = None
        try:
            if text:
                await self._client.load(name, config=text)
            else:
                await self._load_original(name, config_to_json(self._all[name]).decode())
        except InferError as error:
            if NO_CONTROL in error.message:
                self._loaded[name] = before
            raise
        self._loaded[name] = text

    async def _load_original(self, name: str, config_json: str) -> None:
        """Load a model as it is in the repository, and with an override if that is not how it was served."""
        await self._client.load(name)
        if config_to_json(await self._client.model_config(name)).decode() != config_json:
            await self._client.load(name, config=config_json)

    async def _serves(self, name: str, settings: Mapping[str, Any]) -> bool:
        return has_settings(orjson.loads(config_to_json(await self._client.model_config(name))), settings)

    # --- the way back -----------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Load the original configurations, unload what was not loaded, and remove the journal.

        Every model is tried. Raises the first InferError; the journal stays then.
        """
        names = [
            name for name, loaded in self._loaded.items() if loaded != "" or not self._originals[name].config_json
        ]
        await self._put_back({name: self._originals[name] for name in self._order(names, dict.fromkeys(names, ""))})
        self._loaded = dict.fromkeys(self._loaded, "")

    async def _put_back(self, originals: Mapping[str, Original]) -> None:
        failures: list[InferError] = []
        kept = [name for name, original in originals.items() if original.config_json]
        # A model that was not loaded leaves after the ensembles above it.
        for name in kept + [name for name in reversed(list(originals)) if name not in kept]:
            try:
                if name in kept:
                    await self._load_original(name, originals[name].config_json)
                else:
                    await self._client.unload(name)
            except InferError as error:
                _log.error("the configuration of model '%s' could not be restored: %s", name, error.message)
                failures.append(error)
        if failures:
            raise failures[0]
        if self._journal is not None:
            self._journal.unlink(missing_ok=True)

    async def replay(self) -> tuple[str, ...]:
        """Restore what the journal says, and remove it; return the models. Raises as `read_journal`."""
        assert self._journal is not None
        originals = read_journal(self._journal).models
        # Members first; ensembles whose batch must shrink before fail, and are loaded in the second pass.
        configs = {name: config_from_json(each.config_json or "{}") for name, each in originals.items()}
        ordered = {name: originals[name] for name in members_first(configs)}
        try:
            await self._put_back(ordered)
        except InferError:
            await self._put_back(ordered)
        return tuple(originals)


def has_settings(served: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a configuration in JSON form has the values of settings; lists are not compared.

    Servers complete the elements of lists (names and kinds of instance groups).
    """
    for path, value in settings.items():
        first, _, rest = path.partition(".")
        if isinstance(value, list | dict):
            continue
        found = served.get(first)
        if first == "parameters" and rest:
            found = (found or {}).get(rest, {}).get("string_value", "false")
            if found == str(value):
                continue
        elif first == "instance_group":
            found = next((group.get(rest) for group in found or [] if group.get(rest) != value), value)
        elif value is not None:
            for name in rest.split(".") if rest else ():
                found = found.get(name) if isinstance(found, Mapping) else None
        if found != value and not (value is False and found is None):
            return False
    return True
