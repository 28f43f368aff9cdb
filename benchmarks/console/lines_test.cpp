#include "benchmarks/console/lines.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tinyllama::console {
namespace {

class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("pipe failed");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }
  void close_end(int which) {
    if (ends_[which] >= 0) ::close(ends_[which]);
    ends_[which] = -1;
  }
  void write(const std::string& text) const {
    ASSERT_EQ(::write(in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// What was written until now, and nothing after it.
  std::string finish() {
    close_end(1);
    std::string text;
    std::array<char, 4096> bytes;
    ssize_t count = 0;
    while ((count = ::read(out(), bytes.data(), bytes.size())) > 0)
      text.append(bytes.data(), static_cast<size_t>(count));
    return text;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

// Standard output and standard error are these pipes for as long as it lives.
class Redirected {
 public:
  Redirected(const Pipe& out, const Pipe& err) : saved_{::dup(1), ::dup(2)} {
    std::cout.flush();
    ::dup2(out.in(), 1);
    ::dup2(err.in(), 2);
  }
  ~Redirected() {
    for (const int stream : {1, 2}) {
      ::dup2(saved_[stream - 1], stream);
      ::close(saved_[stream - 1]);
    }
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  std::array<int, 2> saved_;
};

TEST(LineInputTest, LinesComeOneByOneHoweverTheyWereWritten) {
  Pipe pipe;
  LineInput input(pipe.out());
  pipe.write("one\n\nthr");
  EXPECT_EQ(input.next(), "one");
  EXPECT_EQ(input.next(), "");
  pipe.write("ee\nfour\nrest");
  pipe.close_end(1);
  EXPECT_EQ(input.next(), "three");
  EXPECT_EQ(input.next(), "four");
  EXPECT_EQ(input.next(), std::nullopt) << "a line cut short is none";
  EXPECT_EQ(input.next(), std::nullopt);
}

TEST(LineInputTest, OfAnEndlessLineTheBeginningIsKeptAndTheNextLineIsWhole) {
  Pipe pipe;
  LineInput input(pipe.out());
  // A pipe holds 64 KiB; the reader below takes what the child writes.
  if (const pid_t child = ::fork(); child == 0) {
    std::string text = "begin";
    text.append(5 * LineInput::kLongestLine, 'x');
    text += "\nnext\n";
    size_t written = 0;
    while (written < text.size()) {
      const ssize_t count = ::write(pipe.in(), text.data() + written, text.size() - written);
      if (count < 0) ::_exit(1);
      written += static_cast<size_t>(count);
    }
    ::_exit(0);
  }
  pipe.close_end(1);
  const std::string kept = input.next().value();
  EXPECT_EQ(kept.size(), LineInput::kLongestLine);
  EXPECT_TRUE(kept.starts_with("beginx")) << kept.substr(0, 20);
  EXPECT_EQ(input.next(), "next");
  EXPECT_EQ(input.next(), std::nullopt);
}

TEST(LineOutputTest, AnswersAreAloneOnStandardOutput) {
  Pipe out;
  Pipe err;
  {
    const Redirected streams(out, err);
    LineOutput output;
    std::cout << "words of a library" << std::endl;
    EXPECT_TRUE(output.write({{"seconds", {0.1, 2.0}}}));
  }
  EXPECT_EQ(out.finish(), "{\"seconds\":[0.1,2.0]}\n");
  EXPECT_EQ(err.finish(), "words of a library\n");
}

TEST(LineOutputTest, WhatIsStillInABufferAtTheEndIsNoAnswerEither) {
  Pipe out;
  Pipe err;
  {
    const Redirected streams(out, err);
    {
      LineOutput output;
      EXPECT_TRUE(output.write({{"closed", "a"}}));
      std::fputs("words without an end", stdout);
    }
    std::fflush(stdout);
  }
  EXPECT_EQ(out.finish(), "{\"closed\":\"a\"}\n");
  EXPECT_EQ(err.finish(), "words without an end");
}

TEST(LineOutputTest, TextThatIsNotUtf8IsWrittenAsJson) {
  Pipe out;
  Pipe err;
  {
    const Redirected streams(out, err);
    LineOutput output;
    EXPECT_TRUE(output.write({{"error", "\xff"}}));
  }
  EXPECT_EQ(out.finish(), "{\"error\":\"\xef\xbf\xbd\"}\n");
}

TEST(LineOutputTest, AReaderThatWentAwayIsNoticed) {
  Pipe out;
  const Pipe err;
  const Redirected streams(out, err);
  LineOutput output;
  out.close_end(0);
  EXPECT_FALSE(output.write({{"closed", "a"}}));
}

}  // namespace
}  // namespace tinyllama::console
