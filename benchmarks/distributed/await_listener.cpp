#include "benchmarks/distributed/await_listener.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <thread>

namespace tinyllama::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Between tries that were refused, and of one try that is not answered at all.
constexpr milliseconds kPause(50);
constexpr milliseconds kLongestTry(2000);

class Socket {
 public:
  explicit Socket(const addrinfo& to)
      : number_(::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                         to.ai_protocol)) {}
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

std::string words_of(int error) {
  return std::generic_category().message(error);
}

std::string try_once(const addrinfo& to, milliseconds patience) {
  const Socket socket(to);
  if (socket.number() < 0) return words_of(errno);
  if (::connect(socket.number(), to.ai_addr, to.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return words_of(errno);
  pollfd waited = {socket.number(), POLLOUT, 0};
  if (::poll(&waited, 1, static_cast<int>(patience.count())) <= 0) return words_of(ETIMEDOUT);
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) != 0)
    return words_of(errno);
  return error == 0 ? std::string() : words_of(error);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

}  // namespace

std::string await_listener(const std::string& address, uint16_t port, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  std::string failure;
  while (true) {
    addrinfo wanted = {};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* first = nullptr;
    const int lookup =
        ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &first);
    const Addresses found(first, &::freeaddrinfo);
    if (lookup != 0) failure = ::gai_strerror(lookup);
    for (const addrinfo* to = found.get(); to != nullptr; to = to->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      failure = try_once(*to, std::clamp(left, milliseconds(1), kLongestTry));
      if (failure.empty()) return {};
    }
    if (Clock::now() + kPause >= deadline) return failure;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace tinyllama::distributed
