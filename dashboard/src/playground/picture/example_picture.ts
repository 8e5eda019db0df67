/** A picture to begin with, made here, so that a model can be tried without a file. */

import type { Picture } from "../form/input_state";
import type { Pixels } from "./resize";

const WIDTH = 320;
const HEIGHT = 240;
export const EXAMPLE_NAME = "example.png";

/** A word for models that read, as dots. */
const WORD = [
    "            #           #",
    "                        #",
    "# ##   ###  #  ###   ## #",
    "##  #     # #     # #  ##",
    "#   #  #### #  #### #   #",
    "#   # #   # # #   # #   #",
    "#   #  #### #  ####  ####",
];
const WORD_AT = { x: 20, y: 35, dot: 5 };

/** A landscape: a sky with a sun and a word, hills and a lake. The same pixels each time. */
export function examplePixels(): Pixels {
    const data = new Uint8Array(WIDTH * HEIGHT * 3);
    for (let y = 0, at = 0; y < HEIGHT; y++) {
        for (let x = 0; x < WIDTH; x++, at += 3) data.set(colorAt(x, y), at);
    }
    return { width: WIDTH, height: HEIGHT, channels: 3, data };
}

function colorAt(x: number, y: number): [number, number, number] {
    const near = 168 + 14 * Math.sin(x / 46) + 8 * Math.sin(x / 17);
    const far = 124 + 34 * Math.sin(x / 61 + 2) - 16 * Math.sin(x / 23);
    if (y > near) return [46 + (y - near) * 0.3, 108 - (y - near) * 0.5, 62];
    if (y > 156 && y > far) return [88, 148 - (y - 156), 178];
    if (y > far) return [98, 116 + (y - far) * 0.4, 138];
    if (WORD[Math.floor((y - WORD_AT.y) / WORD_AT.dot)]?.[Math.floor((x - WORD_AT.x) / WORD_AT.dot)] === "#") return [30, 50, 70];
    if ((x - 236) ** 2 + (y - 54) ** 2 < 26 ** 2) return [255, 226, 138];
    return [126 + y * 0.75, 186 + y * 0.3, 232 - y * 0.1];
}

export function examplePicture(): Picture {
    return { fileName: EXAMPLE_NAME, pixels: examplePixels(), hasAlpha: false };
}
