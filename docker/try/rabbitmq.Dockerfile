# A stand-in for the image rabbitmq:3, from Debian's packages; for docker/try.sh.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends rabbitmq-server \
    && rm -rf /var/lib/apt/lists/* /var/lib/rabbitmq/mnesia
COPY rabbitmq.sh /
USER rabbitmq
ENTRYPOINT ["/rabbitmq.sh"]
