<<<<<<<< HEAD:web/dist/assets/arrow-up-Bv1r2U5K.js
import{nt as e}from"./index-BN0bakJ-.js";var t={name:`arrow-up`,size:24,node:[[`path`,{d:`m5 12 7-7 7 7`,key:`hav0vg`}],[`path`,{d:`M12 19V5`,key:`x0mq9r`}]]};t.node;var n=e(t);export{n as t};
========
import{rt as e}from"./index-BydS8Lfo.js";var t={name:`arrow-up`,size:24,node:[[`path`,{d:`m5 12 7-7 7 7`,key:`hav0vg`}],[`path`,{d:`M12 19V5`,key:`x0mq9r`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 16714c6 (console: Apps of tools are drawn in a sandbox on another origin):web/dist/assets/arrow-up-B1AB6KHs.js
