import asyncio
import os
import subprocess

from vllm.outputs import CompletionOutput, Logprob, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

STEP_S = 0.002
CALLS = "VLLM_DOUBLE_CALLS"
"""Environment variable with the file in which calls are noted, one a line."""


def note(text):
    if os.environ.get(CALLS):
        with open(os.environ[CALLS], "a") as file:
            file.write(text + "\n")


class AsyncLLM:
    """Generates for all requests at a time on the event loop that has made it."""

    def __init__(self, engine_args):
        asyncio.get_running_loop()
        self._args = engine_args
        self._aborted = {}
        self.errored = False
        self.is_shut_down = False

    @classmethod
    def from_engine_args(cls, engine_args):
        if engine_args.model == "too-large":
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        if engine_args.model == "exits":
            raise SystemExit(1)
        if engine_args.model == "processes":
            note(f"process={subprocess.Popen(['sleep', '600']).pid}")
        return cls(engine_args)

    def shutdown(self, timeout=None):
        self.is_shut_down = True
        note("shutdown")

    async def abort(self, request_id, internal=False):
        note("abort")
        if request_id in self._aborted:
            self._aborted[request_id].set()

    async def generate(self, prompt, sampling_params, request_id, *, lora_request=None):
        if self.errored:
            raise EngineDeadError()
        words = prompt.split()
        if len(words) >= self._args.max_model_len:
            raise ValueError(
                f"The decoder prompt (length {len(words)}) is longer than the maximum model length of "
                f"{self._args.max_model_len}."
            )
        self._aborted[request_id] = asyncio.Event()
        try:
            async for output in self._steps(request_id, prompt, words, sampling_params, lora_request):
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            await self.abort(request_id, internal=True)
            raise
        except (EngineDeadError, ValueError):
            raise
        except Exception as error:
            raise EngineGenerateError() from error
        finally:
            del self._aborted[request_id]

    async def _steps(self, request_id, prompt, words, params, lora_request):
        answer = words[::-1][: params.max_tokens]
        if lora_request is not None:
            answer = [f"{lora_request.lora_name}:{lora_request.lora_int_id}", *answer][: params.max_tokens]
        text, pieces = "", []
        for number, word in enumerate(answer):
            await self._pause(word, request_id)
            if self._aborted[request_id].is_set():
                yield self._output(request_id, prompt, words, params, [("", [], "abort")])
                return
            piece = (" " if number else "") + word
            is_last = number == len(answer) - 1
            reason = ("length" if len(answer) == params.max_tokens else "stop") if is_last else None
            for stop in params.stop:
                if stop in text + piece:
                    piece, reason = (text + piece)[: (text + piece).index(stop)][len(text) :], "stop"
            text += piece
            pieces.append((piece, [len(words) + number], reason))
            if params.output_kind is RequestOutputKind.DELTA:
                yield self._output(request_id, prompt, words, params, [pieces[-1]])
            elif reason:
                whole = (
                    "".join(each for each, _, _ in pieces),
                    [each for _, ids, _ in pieces for each in ids],
                    reason,
                )
                yield self._output(request_id, prompt, words, params, [whole] * params.n)
            if reason:
                return

    async def _pause(self, word, request_id):
        await asyncio.sleep(STEP_S)
        if word == "wait":
            await asyncio.wait_for(self._aborted[request_id].wait(), 60)
        if word == "die":
            self.errored = True
        if self.errored:
            raise EngineDeadError()
        if word == "fail":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def _output(self, request_id, prompt, words, params, texts):
        outputs = [
            CompletionOutput(index, text, ids, -0.5 * len(ids), self._logprobs(text, ids, params), reason)
            for index, (text, ids, reason) in enumerate(texts)
        ]
        is_over = all(each.finish_reason for each in outputs)
        return RequestOutput(request_id, prompt, list(range(len(words))), outputs, is_over)

    def _logprobs(self, text, ids, params):
        if params.logprobs is None:
            return None
        others = {
            10_000 + number: Logprob(-2.0 - number, 2 + number, f"o{number}") for number in range(params.logprobs)
        }
        return [{each: Logprob(-0.5, 1, text), **others} for each in ids]
