/** Rows of CSV, and their columns as inputs of a model. */

import type { Datatype, Tensor } from "../tensor/datatypes";
import { InputProblem, tensorFromTexts } from "../tensor/elements";
import { isFloat } from "../tensor/datatypes";
import type { InputSpec, ModelDescription } from "../wire/model";

export interface Table {
    header: string[];
    rows: string[][];
}

export const MAX_ROWS = 10_000;

/** Parse text with a header; commas, semicolons or tabs separate. Quotes as in RFC 4180. Throws InputProblem. */
export function parseCsv(text: string): Table {
    const separator = separatorOf(text);
    const lines = splitRows(text.replace(/^\uFEFF/, ""), separator).filter((row) => row.length > 1 || row[0]?.trim());
    const [header, ...rows] = lines;
    if (!header) throw new InputProblem("there are no rows: write a line with the names of the columns, then a line for each row");
    if (!rows.length) throw new InputProblem("there is only a header: write at least one row below it");
    if (rows.length > MAX_ROWS) throw new InputProblem(`${rows.length} rows: at most ${MAX_ROWS}; use 'naiad predict' for files`);
    rows.forEach((row, index) => {
        if (row.length !== header.length) {
            throw new InputProblem(`row ${index + 1} has ${row.length} values, but the header has ${header.length} columns`);
        }
    });
    return { header: header.map((name) => name.trim()), rows };
}

function separatorOf(text: string): string {
    const line = text.slice(0, text.search(/\r|\n|$/));
    const count = (separator: string) => line.split(separator).length;
    return [",", ";", "\t"].reduce((best, each) => (count(each) > count(best) ? each : best));
}

function splitRows(text: string, separator: string): string[][] {
    const rows: string[][] = [];
    let row: string[] = [];
    let field = "";
    let isQuoted = false;
    const endField = () => {
        row.push(field);
        field = "";
    };
    for (let at = 0; at < text.length; at++) {
        const character = text[at]!;
        if (isQuoted) {
            if (character !== '"') field += character;
            else if (text[at + 1] === '"') field += text[++at];
            else isQuoted = false;
        } else if (character === '"' && field.trim() === "") {
            isQuoted = true;
            field = "";
        } else if (character === separator) {
            endField();
        } else if (character === "\n" || character === "\r") {
            if (character === "\r" && text[at + 1] === "\n") at++;
            endField();
            rows.push(row);
            row = [];
        } else {
            field += character;
        }
    }
    if (isQuoted) throw new InputProblem("a quoted value has no end: add the missing quotation mark");
    if (field || row.length) {
        endField();
        rows.push(row);
    }
    return rows;
}

/** Whether the inputs of a model are columns: a matrix of one row of features, or one value for each column. */
export function takesRows(model: ModelDescription): boolean {
    if (model.isDecoupled || model.isSequence) return false;
    return matrixInput(model) !== undefined || (model.inputs.length > 1 && model.inputs.every((input) => rowWidth(input, model) === 1));
}

function matrixInput(model: ModelDescription): InputSpec | undefined {
    const [input] = model.inputs;
    if (model.inputs.length !== 1 || !input || input.datatype === "BYTES" || input.shape.length !== 2) return undefined;
    const width = input.shape[1]!;
    return width > 0 && width <= 2000 ? input : undefined;
}

/** Elements of a row of an input; undefined for other shapes. */
function rowWidth(input: InputSpec, model: ModelDescription): number | undefined {
    const inner = model.isBatched || input.shape[0] === -1 ? input.shape.slice(1) : input.shape;
    return inner.length > 1 || inner.some((size) => size < 0) ? undefined : (inner[0] ?? 1);
}

/** The columns that a model takes, for the header of an empty table. */
export function columnsOf(model: ModelDescription): string[] {
    const matrix = matrixInput(model);
    if (!matrix) return model.inputs.map((input) => input.name);
    const { names } = model.features;
    return names.length ? names : Array.from({ length: matrix.shape[1]! }, (_, index) => `${matrix.name}_${index}`);
}

/** How many rows a request may have. */
export function rowLimit(model: ModelDescription): number {
    if (model.isBatched) return model.maxBatchSize;
    return model.inputs.every((input) => input.shape[0] === -1) ? MAX_ROWS : 1;
}

/** The inputs of a request with rows. Throws InputProblem with the row and the column. */
export function tableTensors(model: ModelDescription, table: Table): Tensor[] {
    const limit = rowLimit(model);
    const { rows } = table;
    if (rows.length > limit) {
        throw new InputProblem(`${rows.length} rows, but a request of this model has at most ${limit}: send them in parts, or use 'naiad predict'`);
    }
    const matrix = matrixInput(model);
    if (matrix) {
        const wanted = columnsOf(model);
        const places = model.features.names.length || wanted.every((name) => table.header.includes(name))
            ? wanted.map((name) => place(table, name)) : table.header.map((_, index) => index);
        if (places.length !== wanted.length) {
            throw new InputProblem(`${places.length} columns, but the input '${matrix.name}' has ${wanted.length}`);
        }
        const texts = rows.flatMap((row, number) => places.map((at, index) => cell(model, wanted[index]!, matrix.datatype, row[at]!, number)));
        return [tensorFromTexts(matrix.name, matrix.datatype, [rows.length, wanted.length], texts)];
    }
    return model.inputs
        .filter((input) => !input.isOptional || table.header.includes(input.name))
        .map((input) => {
            const at = place(table, input.name);
            const texts = rows.map((row, number) => cell(model, input.name, input.datatype, row[at]!, number));
            const shape = input.shape.map((size, axis) => (axis === 0 && size === -1 ? rows.length : Math.abs(size)));
            return tensorFromTexts(input.name, input.datatype, shape, texts);
        });
}

function place(table: Table, name: string): number {
    const exact = table.header.indexOf(name);
    // LightGBM stores names with underscores for blanks.
    const at = exact >= 0 ? exact : table.header.findIndex((each) => each.replaceAll(" ", "_") === name);
    if (at < 0) throw new InputProblem(`there is no column '${name}'; the columns are ${table.header.map((each) => `'${each}'`).join(", ")}`);
    return at;
}

function cell(model: ModelDescription, column: string, datatype: Datatype, text: string, row: number): string {
    const known = model.features.categories[column];
    if (known && datatype !== "BYTES" && text.trim() !== "") {
        const index = known.findIndex((each) => String(each) === text.trim());
        if (index >= 0) return String(index);
        throw new InputProblem(`row ${row + 1}, column '${column}': '${text.slice(0, 40)}' is none of ${known.slice(0, 20).map((each) => `'${String(each)}'`).join(", ")}`);
    }
    if (datatype === "BYTES") return text;
    if (text.trim() === "" && isFloat(datatype)) return "nan";
    try {
        tensorFromTexts(column, datatype, [1], [text]);
        return text;
    } catch (error) {
        throw new InputProblem(`row ${row + 1}, column '${column}': ${(error as Error).message}`);
    }
}
