/** A request as Python: with Triton's client, and with requests. */

import { type Tensor, tensorBytes } from "../tensor/datatypes";
import { document, encodeCall, needsBinary } from "../wire/infer_body";
import { BODY_FILE, type Code, type CodeRequest, KEY_VARIABLE, inferUrl, isShort } from "./code_request";
import { READ_BODY, arrayOf, arrayOfBody, literal, pictureLines } from "./python_values";

/** Lines that make arrays `values_0`, `values_1`, ... of the inputs, and the imports that they need. */
function arrays(request: CodeRequest): { lines: string[]; imports: string[]; needsBody: boolean } {
    const lines: string[] = [];
    const imports = new Set<string>();
    let needsBody = false;
    const { offsets } = encodeCall(request.call);
    request.call.inputs.forEach((tensor, index) => {
        const variable = `values_${index}`;
        const picture = request.pictures.get(tensor.name);
        if (picture && tensor.datatype !== "BYTES") {
            lines.push(...pictureLines(variable, tensor, picture));
            imports.add("from PIL import Image, ImageOps");
        } else if (isShort(request) || tensorBytes(tensor) < 512) {
            lines.push(`${variable} = ${arrayOf(tensor)}`);
        } else {
            if (!needsBody) lines.unshift(READ_BODY);
            needsBody = true;
            lines.push(`${variable} = ${arrayOfBody(tensor, offsets[index]!, tensorBytes(tensor))}`);
            if (tensor.datatype === "BYTES") imports.add("from tritonclient.utils import deserialize_bytes_tensor");
            if (tensor.datatype === "BF16") imports.add("from tritonclient.utils import deserialize_bf16_tensor");
        }
    });
    return { lines, imports: [...imports], needsBody };
}

/** Python with `pip install tritonclient[all]`. Streams use gRPC, which the HTTP port of naiad speaks, too. */
export function tritonCode(request: CodeRequest): Code {
    const { lines, imports, needsBody } = arrays(request);
    const kind = request.call.isStream ? "grpc" : "http";
    const { call } = request;
    const inputs = call.inputs.flatMap((tensor, index) => [
        `input_${index} = client.InferInput(${literal(tensor.name)}, list(values_${index}.shape), ${literal(tensor.datatype)})`,
        `input_${index}.set_data_from_numpy(values_${index})`,
    ]);
    const names = call.inputs.map((_, index) => `input_${index}`).join(", ");
    const text = [
        ...(request.hasKey ? ["import os"] : []),
        ...(call.isStream ? ["import queue"] : []),
        ...(request.hasKey || call.isStream ? [""] : []),
        "import numpy as np",
        ...(imports.some((each) => each.includes("PIL")) ? imports.filter((each) => each.includes("PIL")) : []),
        `import tritonclient.${kind} as client`,
        ...imports.filter((each) => !each.includes("PIL")),
        "",
        ...lines,
        ...inputs,
        ...(call.isStream ? streamLines(request, names) : inferLines(request, names)),
    ];
    return { text: `${text.join("\n")}\n`, needsBody };
}

function inferLines(request: CodeRequest, names: string): string[] {
    const { host, isSecure } = target(request);
    const headers = request.hasKey ? [`headers={"Authorization": "Bearer " + os.environ["${KEY_VARIABLE}"]}`] : [];
    const words = [literal(request.model), `[${names}]`, ...options(request, "http"), ...headers];
    return [
        `server = client.InferenceServerClient(${[literal(host), ...(isSecure ? ["ssl=True"] : [])].join(", ")})`,
        `result = server.infer(${words.join(", ")})`,
        'for output in result.get_response()["outputs"]:',
        '    print(output["name"], output["shape"], result.as_numpy(output["name"]).tolist())',
    ];
}

function streamLines(request: CodeRequest, names: string): string[] {
    const { host, isSecure } = target(request);
    const words = [literal(request.model), `[${names}]`, ...options(request, "grpc"), "enable_empty_final_response=True"];
    const headers = request.hasKey ? `, headers={"authorization": "Bearer " + os.environ["${KEY_VARIABLE}"]}` : "";
    return [
        "responses = queue.Queue()",
        `with client.InferenceServerClient(${[literal(host), ...(isSecure ? ["ssl=True"] : [])].join(", ")}) as server:`,
        `    server.start_stream(lambda result, error: responses.put((result, error))${headers})`,
        `    server.async_stream_infer(${words.join(", ")})`,
        "    while True:",
        "        result, error = responses.get()",
        "        if error is not None:",
        "            raise error",
        "        response = result.get_response()",
        "        for output in response.outputs:",
        "            print(output.name, list(output.shape), result.as_numpy(output.name).tolist())",
        '        if response.parameters["triton_final_response"].bool_param:',
        "            break",
        "    server.stop_stream()",
    ];
}

const OWN_OPTIONS = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout"];

function options(request: CodeRequest, kind: "http" | "grpc"): string[] {
    const { call } = request;
    const words: string[] = [];
    if (request.version) words.push(`model_version=${literal(request.version)}`);
    if (call.outputs.length) {
        const outputs = call.outputs.map(({ name, classCount }) => {
            const more = classCount ? `, class_count=${classCount}` : "";
            return `client.InferRequestedOutput(${literal(name)}${more})`;
        });
        words.push(`outputs=[${outputs.join(", ")}]`);
    }
    const own = Object.entries(call.parameters).filter(([name]) => OWN_OPTIONS.includes(name));
    for (const [name, value] of own) words.push(`${name}=${literal(value)}`);
    const others = Object.entries(call.parameters).filter(([name]) => !OWN_OPTIONS.includes(name) && !(kind === "grpc" && name === "json_nan"));
    if (others.length) words.push(`parameters=${literal(Object.fromEntries(others))}`);
    return words;
}

function target(request: CodeRequest): { host: string; isSecure: boolean } {
    const url = new URL(request.root);
    return { host: `${url.host}${url.pathname}`.replace(/\/$/, ""), isSecure: url.protocol === "https:" };
}

/** Python with `pip install requests`. */
export function requestsCode(request: CodeRequest): Code {
    const { call } = request;
    const isBinary = needsBinary(call.inputs) || request.pictures.size > 0;
    const made = isBinary ? arrays(request) : undefined;
    const isOfArrays = made !== undefined && !made.needsBody && call.inputs.every(hasPlainBytes);
    const { headers } = encodeCall(call);
    const sent: string[] = [];
    const fields = Object.entries(headers).filter(([name]) => name !== "Content-Type").map(([name, value]) => `${literal(name)}: ${literal(value)}`);
    const setup: string[] = [];
    const imports: string[] = [];
    if (!isBinary) {
        sent.push(`json=${literal(document(call))}`);
    } else if (isOfArrays) {
        setup.push(...made.lines, ...headLines(request));
        imports.push("import numpy as np", ...made.imports);
        const values = call.inputs.map((_, index) => `values_${index}.tobytes()`);
        sent.push(`data=${["head", ...values].join(" + ")}`);
        fields.splice(0, fields.length, ...fields.filter((each) => !each.startsWith('"Inference-')), '"Inference-Header-Content-Length": str(len(head))');
    } else {
        sent.push(`data=open("${BODY_FILE}", "rb")`);
    }
    if (request.hasKey) fields.push(`"Authorization": "Bearer " + os.environ["${KEY_VARIABLE}"]`);
    if (fields.length) sent.push(`headers={${fields.join(", ")}}`);
    if (call.isStream) sent.push("stream=True");
    const text = [
        ...(isOfArrays || call.isStream || call.isAnswerBinary ? ["import json"] : []),
        ...(request.hasKey ? ["import os"] : []),
        ...(isOfArrays || call.isStream || call.isAnswerBinary || request.hasKey ? [""] : []),
        ...imports,
        "import requests",
        "",
        ...setup,
        `url = ${literal(inferUrl(request))}`,
        `answer = requests.post(\n    url,\n    ${sent.join(",\n    ")},\n)`,
        "if not answer.ok:",
        "    raise SystemExit(answer.text)",
        ...printLines(call.isStream, call.isAnswerBinary),
    ];
    return { text: `${text.join("\n")}\n`, needsBody: isBinary && !isOfArrays };
}

/** `tobytes()` of the array is the binary form. */
function hasPlainBytes(tensor: Tensor): boolean {
    return tensor.datatype !== "BYTES" && tensor.datatype !== "BF16";
}

function headLines(request: CodeRequest): string[] {
    const { call } = request;
    const whole = document(call, call.inputs.map(() => 0));
    const inputs = call.inputs.map((tensor, index) => {
        const parts = [`"name": ${literal(tensor.name)}`, `"datatype": ${literal(tensor.datatype)}`, `"shape": values_${index}.shape`];
        return `    {${parts.join(", ")}, "parameters": {"binary_data_size": values_${index}.nbytes}},`;
    });
    const others = Object.entries(whole).filter(([name]) => name !== "inputs").map(([name, value]) => `, ${literal(name)}: ${literal(value)}`);
    return ["inputs = [", ...inputs, "]", `head = json.dumps({"inputs": inputs${others.join("")}}).encode()`];
}

function printLines(isStream: boolean, isAnswerBinary: boolean): string[] {
    if (isStream) {
        return [
            "for line in answer.iter_lines():",
            '    if line.startswith(b"data: "):',
            "        print(json.loads(line[6:]))",
        ];
    }
    if (isAnswerBinary) {
        return [
            'length = int(answer.headers["Inference-Header-Content-Length"])',
            'print(json.loads(answer.content[:length])["outputs"], len(answer.content) - length, "bytes of values")',
        ];
    }
    return ['for output in answer.json()["outputs"]:', '    print(output["name"], output["shape"], output["data"])'];
}
