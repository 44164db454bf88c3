<<<<<<<< HEAD:web/dist/assets/arrow-up-u9K2Tlcs.js
import{rt as e}from"./index-CJinAzrj.js";var t={name:`arrow-up`,size:24,node:[[`path`,{d:`m5 12 7-7 7 7`,key:`hav0vg`}],[`path`,{d:`M12 19V5`,key:`x0mq9r`}]]};t.node;var n=e(t);export{n as t};
========
import{nt as e}from"./index-BTLdR8Y3.js";var t={name:`arrow-up`,size:24,node:[[`path`,{d:`m5 12 7-7 7 7`,key:`hav0vg`}],[`path`,{d:`M12 19V5`,key:`x0mq9r`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 6eef2eb (calls: when a call's turn came, when it was sent and answered; replays name their originals):web/dist/assets/arrow-up-vLopsbxd.js
