// One script and one style sheet, with the same names in every build: a report takes them in whole.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/shardkeep/view/web/static",
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/viewer.js",
        assetFileNames: "assets/viewer[extname]",
      },
    },
  },
});
