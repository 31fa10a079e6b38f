"""Small language models on real text, trained by InRank and by what it is compared with."""
