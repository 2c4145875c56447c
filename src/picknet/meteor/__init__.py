"""METEOR 1.5 for English (Denkowski and Lavie, 2014), equal to the Java program that pycocoevalcap calls.

A candidate is aligned with each reference: words match if they are equal, have the same stem, are synonyms, or are part
of phrases that paraphrase each other. The score weighs precision, recall and the number of chunks that the matched
words form; the reference with the best score counts. Where only the program's beam search or one of its peculiarities
decides between alignments, this follows the program.

Word lists, synonyms and paraphrases are read from the files of the `meteor` extra; Java is not started.
"""
