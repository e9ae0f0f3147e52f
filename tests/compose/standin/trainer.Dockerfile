# Stands for the trainer's image for cards: the same program and the same command, on gloo.
FROM hintloop/trainer-cpu:0.1.0
ENTRYPOINT ["torchrun"]
